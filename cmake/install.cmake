# Installs the library, its header, and the files by which build systems find them. Every path
# inside is relative to the file that holds it, so the tree can be moved (a wheel is).
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/perseus)

# A wheel cannot contain a symbolic link, so -lperseus finds a linker script.
install(TARGETS perseus EXPORT perseusTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library NAMELINK_SKIP)
file(WRITE ${PROJECT_BINARY_DIR}/libperseus.so "/* GNU ld script */\nINPUT(libperseus.so.${soversion})\n")
install(FILES ${PROJECT_BINARY_DIR}/libperseus.so DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library)
install(FILES ${PROJECT_SOURCE_DIR}/csrc/include/perseus/perseus.h
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/perseus COMPONENT library)

install(EXPORT perseusTargets NAMESPACE perseus:: DESTINATION ${package_dir} COMPONENT library)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/perseusConfig.cmake.in
                              ${PROJECT_BINARY_DIR}/perseusConfig.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/perseusConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/perseusConfig.cmake
              ${PROJECT_BINARY_DIR}/perseusConfigVersion.cmake
        DESTINATION ${package_dir} COMPONENT library)

# pkg-config sets ${pcfiledir} to the folder of perseus.pc: <prefix>/<libdir>/pkgconfig.
file(RELATIVE_PATH PC_PREFIX /p/${CMAKE_INSTALL_LIBDIR}/pkgconfig /p)
configure_file(${PROJECT_SOURCE_DIR}/cmake/perseus.pc.in ${PROJECT_BINARY_DIR}/perseus.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/perseus.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
        COMPONENT library)
